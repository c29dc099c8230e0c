"""Dependencies: parameters of tasks that a worker fills in, such as a database session"""
