//! Headers of arrays, in an archive with one stored member. An input is the version, the text of the
//! header up to its first newline, and the data behind it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use neptune_fuzz::{check_weights, npz};

fuzz_target!(|input: &[u8]| {
    let Some((version, rest)) = input.split_first() else { return };
    let end = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1);
    let length = u32::try_from(end).expect("inputs are short").to_le_bytes();
    let length = if version % 4 == 1 { &length[..2] } else { &length[..] };
    let array = [b"\x93NUMPY", &[version % 4, 0][..], length, rest].concat();
    // The header may be 16 KiB; the directory and its texts are as long as the input.
    check_weights(&npz(&[("w.npy", &array)]), 64 * 1024, 4);
});
