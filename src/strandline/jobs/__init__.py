"""What every job that runs by itself or beside others needs: heartbeats and schedules."""
