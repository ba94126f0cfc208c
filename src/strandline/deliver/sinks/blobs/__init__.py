"""What `files` and `s3` share: objects with names, encoded from rows and read back."""
