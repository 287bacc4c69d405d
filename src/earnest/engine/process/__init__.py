"""What a process of Earnest is: its engine, what it knows to do, its bells, its words."""
