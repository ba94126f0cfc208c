"""What compaction costs, and what it does to reads."""
