//! Files of weights in the safetensors format. An input is the JSON of the header, up to its last
//! brace, and the data behind it; or with a first byte of 0 the file itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use neptune_fuzz::check_weights;

/// A header of many empty tensors takes most: names are kept three times.
const FACTOR: usize = 16;

fuzz_target!(|input: &[u8]| {
    if let Some((0, file)) = input.split_first() {
        return check_weights(file, 16 * 1024, FACTOR);
    }
    let end = input.iter().rposition(|byte| *byte == b'}').map_or(input.len(), |at| at + 1);
    let file = [&(end as u64).to_le_bytes()[..], input].concat();
    check_weights(&file, 16 * 1024, FACTOR);
});
