"""A change of leaders: promotion, rejoin, and the cut that a take-over makes."""
