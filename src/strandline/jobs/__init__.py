"""What unattended or concurrent work needs: loops, schedules, heartbeats, tasks."""
