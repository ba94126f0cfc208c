"""What work needs that runs by itself or beside other processes."""
