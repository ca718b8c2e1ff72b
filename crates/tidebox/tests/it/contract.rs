//! What is committed is what is served.
