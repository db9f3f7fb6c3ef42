"""What drafters that guess token by token share: a tree of guesses, grown best first and judged by what came."""
