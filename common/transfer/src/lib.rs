//! Files that programs write, receive and keep. [`durable`] is the only place of the product that
//! gives a finished file or directory its name.

#![deny(missing_docs)]

pub mod durable;
