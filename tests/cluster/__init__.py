"""A Kubernetes cluster of the tests' own on one Linux machine: three nodes, Argo Workflows, an S3 server.

python -m tests.cluster up | status | down
"""
