//! Runs, and a training program that is a function of its task.

use std::path::Path;

use fastrand::Rng;
use neptune_content::Digest;
use neptune_wire::{
    aggregator::{InitialWeights, RunRequest, RunTask, RunWorker, UpdateReport},
    fixtures::run_request,
};

/// Names and shapes of a small classifier of 8 x 8 images.
pub const SHAPES: [(&str, &[usize]); 4] =
    [("w1", &[64, 32]), ("b1", &[32]), ("w2", &[32, 10]), ("b2", &[10])];

/// Samples that the agents counted in each dataset.
pub const COUNTED: u64 = 344;

pub fn request(workers: usize, rounds: u32) -> RunRequest {
    let worker = |at: usize| {
        let name = format!("w{at}");
        let node = format!("edge{at}").parse().unwrap();
        let dataset = format!("digits-{at}").parse().unwrap();
        (name, RunWorker { node, dataset, samples: None })
    };
    let mut request = run_request((0..workers).map(worker));
    "2f1c5f0e-uid".clone_into(&mut request.uid);
    request.settings.rounds = rounds;
    request
}

pub fn with_initial(mut request: RunRequest, sha256: String) -> RunRequest {
    request.settings.initial = Some(InitialWeights { url: None, sha256 });
    request
}

/// What the program writes: numbers that depend on all that the task depends on.
pub fn trained(task: &RunTask) -> Vec<u8> {
    npz(&values(task))
}

/// Returns the tensors of the update that [`trained`] packs.
pub fn values(task: &RunTask) -> Vec<Vec<f32>> {
    let base = task.base.as_ref().map(|it| it.sha256.as_str()).unwrap_or_default();
    let text = format!("{} {base}", task.seed);
    let digest = Digest::of_bytes(text.as_bytes());
    let seed = u64::from_be_bytes(digest.as_ref()[..8].try_into().unwrap());
    let mut random = Rng::with_seed(seed);
    SHAPES
        .iter()
        .map(|(_, shape)| (0..shape.iter().product()).map(|_| random.f32() - 0.5).collect())
        .collect()
}

pub fn report() -> UpdateReport {
    UpdateReport {
        samples: COUNTED,
        counted_samples: Some(COUNTED),
        steps: None,
        loss: Some(0.19),
        metrics: Vec::new(),
        seconds: 4,
    }
}

/// An `.npz` file as `numpy.savez` writes it.
pub fn npz(tensors: &[Vec<f32>]) -> Vec<u8> {
    let members = SHAPES.iter().zip(tensors);
    let members = members.map(|((name, shape), values)| {
        let data: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
        ((*name).to_owned(), npy("<f4", shape, &data))
    });
    zip(&members.collect::<Vec<_>>())
}

/// Returns an `.npy` file with this element type, shape and content.
pub fn npy(descr: &str, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let sizes: Vec<_> = shape.iter().map(|it| format!("{it}, ")).collect();
    let mut header = format!(
        "{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}",
        sizes.concat().trim_end()
    );
    let padding = 64 - (11 + header.len()) % 64;
    header += &" ".repeat(padding);
    header.push('\n');
    let length = u16::try_from(header.len()).unwrap().to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), data].concat()
}

/// A ZIP archive with stored members.
pub fn zip(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in members {
        let name = format!("{name}.npy");
        let offset = u32::try_from(archive.len()).unwrap();
        let size = u32::try_from(data.len()).unwrap().to_le_bytes();
        let mut description = vec![0x14, 0, 0, 0, 0, 0, 0, 0, 0x21, 0];
        description.extend(crc32fast::hash(data).to_le_bytes());
        description.extend([size, size].concat());
        description.extend(u16::try_from(name.len()).unwrap().to_le_bytes());
        description.extend([0; 2]);
        archive.extend([b"PK\x03\x04", &description[..], name.as_bytes(), data].concat());
        directory.extend([b"PK\x01\x02\x14\x00", &description[..], &[0; 10]].concat());
        directory.extend([&offset.to_le_bytes()[..], name.as_bytes()].concat());
    }
    let count = u16::try_from(members.len()).unwrap().to_le_bytes();
    let size = u32::try_from(directory.len()).unwrap().to_le_bytes();
    let offset = u32::try_from(archive.len()).unwrap().to_le_bytes();
    let end = [&count[..], &count, &size, &offset, &[0; 2]].concat();
    archive.extend([&directory[..], b"PK\x05\x06\x00\x00\x00\x00", &end].concat());
    archive
}

/// Writes a content beside those that are complete, as a finished upload does.
pub fn place(aggregator: &neptune_aggregator::aggregator::Aggregator, bytes: &[u8]) -> String {
    let digest = Digest::of_bytes(bytes);
    let path = aggregator.work_file(&format!("test-{digest}"));
    std::fs::write(&path, bytes).unwrap();
    aggregator.uploads().adopt(&path, &digest).unwrap();
    digest.to_string()
}

/// The number of complete contents in a data directory.
pub fn contents(directory: &Path) -> usize {
    std::fs::read_dir(directory.join("contents/complete")).unwrap().count()
}
