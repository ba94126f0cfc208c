"""What `files` and `s3` share: named objects, encoded from rows and read back."""
