"""The Spark data source `strandline`: settled rows as a DataFrame, or as a stream."""
