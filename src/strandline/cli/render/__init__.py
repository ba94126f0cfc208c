"""What people and programs are shown: values in, text and JSON out."""
