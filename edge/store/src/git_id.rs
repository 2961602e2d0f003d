//! The Git object ID of a downloaded file. I/O: reads the file.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use neptune_hub::GitBlobHash;

const BUFFER: usize = 64 << 10;

/// The object ID of a file as a Git blob. Blocking.
pub fn of_file(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = GitBlobHash::new(file.metadata()?.len());
    let mut buffer = vec![0; BUFFER];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.finish()),
            read => hash.update(&buffer[..read]),
        }
    }
}
