//! Archives of arrays, stored and deflated. An input is the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use neptune_fuzz::check_weights;

fuzz_target!(|input: &[u8]| {
    // An inflater takes 110 KiB, one at a time; an entry of 46 bytes becomes a tensor.
    check_weights(&[b"PK", input].concat(), 192 * 1024, 16);
});
