"""Text for people and from people: counts, durations, whole numbers, bounds."""
