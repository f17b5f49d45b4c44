"""What an answer would have found, beside how often it is wrong.

'Nothing found' is only said where something would have been found. If what would have been found is
more than a user acts on, the answer is 'cannot tell'.
"""

# Shares of the time from which on a user acts.
ACT_ON_CASE = 0.5  # a case is 1.5 times slower
ACT_ON_ALL = 0.05  # a node is 5 % slower in all cases
ACT_ON_STEP = 0.1  # a training step is 10 % longer
