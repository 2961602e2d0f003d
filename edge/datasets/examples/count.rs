//! Counts a dataset once and prints the duration: `count FORMAT PATH [header]`. Used by
//! `hack/bench-datasets.sh`.

use std::{env, path::PathBuf, time::Instant};

use neptune_datasets::{DatasetError, LocalDataset, PathPolicy, ReadMeter};
use neptune_sources::FormatOptions;

#[expect(clippy::disallowed_methods, reason = "measures its own duration")]
fn main() -> Result<(), DatasetError> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [format, path, rest @ ..] = arguments.as_slice() else {
        eprintln!("usage: count FORMAT PATH [header]");
        std::process::exit(2);
    };
    let options = FormatOptions {
        header: rest.first().is_some_and(|argument| argument == "header"),
        ..FormatOptions::default()
    };
    let dataset = LocalDataset { path: PathBuf::from(path), format: format.parse()?, options };
    let policy = PathPolicy { allowed_roots: vec!["/".into()] };
    let meter = ReadMeter::default();
    let started = Instant::now();
    let state = dataset.count(None, &policy, &meter)?;
    println!(
        "{} samples in {:.3} s, {} bytes read",
        state.counts().samples,
        started.elapsed().as_secs_f64(),
        meter.bytes_read()
    );
    Ok(())
}
