"""The jobs that mltcpd controls, and the mechanisms that control them."""
