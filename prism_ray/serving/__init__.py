"""Ray Serve's side: ingress, QAS actor, replicas, and the lines between them. Decides no order."""
