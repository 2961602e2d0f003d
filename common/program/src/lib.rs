//! What all programs of Neptune do in the same way: so far, how their servers accept connections.
#![deny(missing_docs)]

pub mod listen;
