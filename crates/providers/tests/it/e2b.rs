//! Tests of the provider `e2b` against services that answer badly, late, without end, or not at all. Each time the error
//! has a type, the wait and the memory have a bound, and nothing is left in the account.

mod commands;
mod harness;
mod health;
mod starts;
