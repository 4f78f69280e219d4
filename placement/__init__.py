"""Where jobs run and when: the cluster, what sharing its links costs, the policies, and a simulator to compare them."""
