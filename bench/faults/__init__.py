"""What is lost and what comes twice: counted, by doing to every side what happens to it one day."""
