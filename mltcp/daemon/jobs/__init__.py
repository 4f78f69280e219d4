"""The jobs that mltcpd controls: their registration, flows and iterations."""
