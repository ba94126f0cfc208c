"""Plans what a lane gets next: measures its rows and cuts the range into chunks."""
