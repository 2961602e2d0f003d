//! A planted secret, and the search for it wherever it must not be.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use crate::MqttClient;

/// Returns 200 hexadecimal digits of random bytes, which occur nowhere by chance.
///
/// # Panics
/// If the machine has no source of random bytes.
pub fn planted_secret() -> String {
    let mut bytes = [0; 100];
    fs::File::open("/dev/urandom").unwrap().read_exact(&mut bytes).unwrap();
    let digit = |value: u8| char::from_digit(value.into(), 16).expect("below 16");
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).collect()
}

/// The files below a directory that contain a text. Links are not followed.
///
/// # Panics
/// If there is no such directory.
pub fn files_with(dir: &Path, text: &str) -> Vec<PathBuf> {
    assert!(dir.is_dir(), "{} is no directory", dir.display());
    let mut with = Vec::new();
    search(dir, text, &mut with);
    with
}

/// Running programs remove files meanwhile, which is no failure.
fn search(dir: &Path, text: &str, with: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
        if kind.is_dir() {
            search(&path, text, with);
        } else if kind.is_file()
            && let Ok(content) = fs::read(&path)
            && contains(&content, text)
        {
            with.push(path);
        }
    }
}

/// The topics of the messages that a client received and did not return yet. None of them may
/// contain one of these texts.
///
/// # Panics
/// If a message contains one.
pub fn topics_without(client: &mut MqttClient, texts: &[impl AsRef<str>]) -> Vec<String> {
    let messages = client.received().into_iter().map(|message| {
        for text in texts {
            assert!(
                !contains(&message.payload, text.as_ref()),
                "{}: {}",
                message.topic,
                String::from_utf8_lossy(&message.payload)
            );
        }
        message.topic
    });
    messages.collect()
}

fn contains(content: &[u8], text: &str) -> bool {
    content.windows(text.len()).any(|part| part == text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_secret_is_found_in_files_of_other_bytes_and_in_no_other_file() {
        let (dir, secret) = (tempfile::tempdir().unwrap(), planted_secret());
        assert_eq!(secret.len(), 200);
        let below = dir.path().join("below");
        fs::create_dir(&below).unwrap();
        fs::write(below.join("database"), format!("\0\u{fffd}{secret}\0")).unwrap();
        fs::write(dir.path().join("log"), &secret[1..]).unwrap();
        assert_eq!(files_with(dir.path(), &secret), [below.join("database")]);
        assert!(files_with(dir.path(), &planted_secret()).is_empty());
    }
}
