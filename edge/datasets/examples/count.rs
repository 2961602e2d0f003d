//! Counts a dataset and says how long it took: `count <format> <path> [header]`. The benchmark runs it.

use std::{env, path::PathBuf, time::Instant};

use neptune_datasets::{DatasetSpec, Error, Meter, Options, Policy};

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [format, path, rest @ ..] = arguments.as_slice() else {
        eprintln!("usage: count <format> <path> [header]");
        std::process::exit(2);
    };
    let options =
        Options { header: rest.first().is_some_and(|word| word == "header"), ..Options::default() };
    let spec = DatasetSpec { path: PathBuf::from(path), format: format.parse()?, options };
    let (policy, meter, started) =
        (Policy { allowed_roots: vec!["/".into()] }, Meter::default(), Instant::now());
    let state = spec.count(None, &policy, &meter)?;
    println!(
        "{} samples in {:.3} s, {} bytes read",
        state.tally().samples,
        started.elapsed().as_secs_f64(),
        meter.bytes_read()
    );
    Ok(())
}
