//! What all programs of Neptune do in the same way: so far, how their servers accept connections, and
//! the text of a failed call.
#![deny(missing_docs)]

mod causes;
pub mod listen;

pub use causes::causes;
