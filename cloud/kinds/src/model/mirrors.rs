//! Validates the mirrors of a model: further addresses of the same content. Pure.

use neptune_wire::{ArtifactAddress, MAX_MIRRORS, redact};

use super::address::selected_text;

/// Checks the mirrors of a file or a set of files at `url`.
///
/// # Errors
/// A message about the first invalid mirror, without the field, with the remedy.
pub fn check(url: &ArtifactAddress, has_digest: bool, mirrors: &[String]) -> Result<(), String> {
    if mirrors.is_empty() {
        return Ok(());
    }
    if !has_digest {
        return Err("mirrors need sha256sum; set it, or remove mirrors".to_owned());
    }
    if mirrors.len() > MAX_MIRRORS {
        let count = mirrors.len();
        return Err(format!("{count} mirrors, at most {MAX_MIRRORS} are allowed; remove some"));
    }
    if matches!(url, ArtifactAddress::Path(_)) {
        return Err("a path on the node has no mirrors; remove mirrors".to_owned());
    }
    let is_set = |address: &ArtifactAddress| match address {
        ArtifactAddress::Hub(address) => address.is_set(),
        ArtifactAddress::Oci(_) => true,
        _ => false,
    };
    for (index, mirror) in mirrors.iter().enumerate() {
        let invalid = |why: &str| Err(format!("mirrors[{index}] {:?}: {why}", redact(mirror)));
        match mirror.parse::<ArtifactAddress>() {
            Err(error) => return invalid(&error.to_string()),
            Ok(ArtifactAddress::Path(_)) => {
                return invalid("a path on the node cannot be a mirror; use a URL");
            }
            Ok(mirror) if is_set(&mirror) != is_set(url) => {
                return invalid(
                    "use a file as the mirror of a file, and a repository or an artifact as that of one",
                );
            }
            Ok(_) => {}
        }
    }
    Ok(())
}

/// The addresses of mirrors as nodes get them, with the patterns of the files.
pub fn addresses(mirrors: &[String], files: &[String]) -> Vec<String> {
    mirrors.iter().map(|url| selected_text(url, files)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn mirrors_are_downloads_of_the_same_kind_and_need_a_digest() {
        let checked = |url: &str, has_digest, mirrors: &[&str]| {
            let mirrors: Vec<_> = mirrors.iter().map(|it| (*it).to_owned()).collect();
            check(&url.parse().unwrap(), has_digest, &mirrors)
        };
        let (file, set) = ("http://h/m", "hf://o/r");
        checked(file, false, &[]).unwrap();
        checked("/m", true, &[]).unwrap();
        checked(file, true, &["https://a/m", "s3://bucket/m", "hf://o/r/m"]).unwrap();
        checked(set, true, &["hf://p/q@v1", "oci://registry.example/p/q:v1"]).unwrap();
        checked("oci://registry.example/q", true, &["hf://p/q"]).unwrap();
        for (url, has_digest, mirrors, why) in [
            (file, false, &["http://a/m"][..], "need sha256sum"),
            (file, true, &["http://a/m"; 9], "9 mirrors, at most 8"),
            ("/m", true, &["http://a/m"], "a path on the node has no mirrors"),
            (file, true, &["http://a/m", "/m"], "mirrors[1] \"/m\": a path"),
            (file, true, &["ftp://ann:secret@h/m"], "mirrors[0] \"ftp://h/m\": "),
            (file, true, &["hf://o/r"], "use a file"),
            (set, true, &["hf://o/r/m"], "a repository or an artifact as that of one"),
            ("oci://registry.example/q", true, &["http://h/m"], "use a file"),
        ] {
            let message = checked(url, has_digest, mirrors).expect_err(why);
            assert!(message.contains(why) && !message.contains("secret"), "{message}");
        }
    }

    #[test]
    fn nodes_get_mirrors_with_the_patterns_of_the_files() {
        let texts = |texts: &[&str]| texts.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let mirrors = texts(&["HF://o/r@v1", "hf://p/q"]);
        assert_eq!(
            addresses(&mirrors, &texts(&["*.json"])),
            ["hf://o/r@v1?files=*.json", "hf://p/q?files=*.json"]
        );
        assert_eq!(addresses(&texts(&["s3://bucket/m"]), &[]), ["s3://bucket/m"]);
    }
}
