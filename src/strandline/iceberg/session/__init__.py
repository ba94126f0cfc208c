"""Starts Spark: Java, jars, class archive, and one session per lake."""
