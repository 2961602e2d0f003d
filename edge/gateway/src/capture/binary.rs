//! Takes images and other binary values out of a request: they become files beside the records. Pure.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use neptune_transfer::Digest;
use serde_json::{json, value::RawValue};

use crate::protocol::{
    json::{Object, list, raw},
    numbers::elements,
};

/// The directory of the files, below that of the records.
pub const DIRECTORY: &str = "images";
/// Binary values of unknown type below this size stay in the record.
const MIN_BYTES: usize = 1024;
/// Nested values are looked at up to this depth.
const MAX_DEPTH: usize = 32;
/// Members that have the address of an image.
const ADDRESSES: [&str; 2] = ["url", "image_url"];

/// A binary value of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BinaryFile {
    /// Name of the file in [`DIRECTORY`]: the SHA-256 of its content, and the extension of its
    /// type.
    pub name: String,
    /// The decoded bytes of the value.
    pub content: Vec<u8>,
}

/// The request with paths below the directory of the records in the place of its binary values, and
/// these values, each once. All other text is as it was.
///
/// - A data URL in `url` or `image_url` becomes the path.
/// - `{"b64": TEXT}` becomes `{"file": PATH}`.
pub fn extract(request: Vec<u8>) -> (Vec<u8>, Vec<BinaryFile>) {
    let has = |mark: &[u8]| request.windows(mark.len()).any(|part| part == mark);
    if !has(b"\"b64\"") && !has(b"\"data:") {
        return (request, Vec::new());
    }
    let mut files = Vec::new();
    let changed = serde_json::from_slice(&request)
        .ok()
        .and_then(|value: &RawValue| replace(value, "", MAX_DEPTH, &mut files));
    match changed {
        Some(value) => (value.get().as_bytes().to_vec(), files),
        None => (request, Vec::new()),
    }
}

/// The value with its binary values replaced; `None` if it has none. `member`: its name.
fn replace(
    value: &RawValue,
    member: &str,
    depth: usize,
    files: &mut Vec<BinaryFile>,
) -> Option<Box<RawValue>> {
    let depth = depth.checked_sub(1)?;
    match value.get().as_bytes().first()? {
        b'{' => {
            let mut object = Object::from_raw(value)?;
            if object.names().eq(["b64"]) {
                let text: String = object.get("b64")?;
                return Some(raw(&json!({"file": file(&STANDARD.decode(text).ok()?, files)?})));
            }
            let mut is_changed = false;
            let names: Vec<String> = object.names().map(str::to_owned).collect();
            for name in names {
                let Some(value) = object.original(&name) else { continue };
                if let Some(replaced) = replace(value, &name, depth, files) {
                    object.set(&name, replaced);
                    is_changed = true;
                }
            }
            is_changed.then(|| raw(&object))
        }
        b'[' => {
            let all = elements(value)?;
            // Most lists are numbers.
            if all.iter().all(|value| !matches!(value.get().as_bytes()[0], b'{' | b'[')) {
                return None;
            }
            let mut replaced = Vec::with_capacity(all.len());
            for value in &all {
                replaced.push(replace(value, "", depth, files));
            }
            let is_changed = replaced.iter().any(Option::is_some);
            let merged = replaced.iter().zip(&all).map(|(new, old)| new.as_deref().unwrap_or(old));
            is_changed.then(|| list(merged))
        }
        b'"' if ADDRESSES.contains(&member) => {
            let text: String = serde_json::from_str(value.get()).ok()?;
            let (kind, data) = text.strip_prefix("data:")?.split_once(',')?;
            let content = STANDARD.decode(data).ok().filter(|_| kind.ends_with(";base64"))?;
            Some(raw(&file(&content, files)?))
        }
        _ => None,
    }
}

/// The path of a file with this content; `None` if it stays in the record.
fn file(content: &[u8], files: &mut Vec<BinaryFile>) -> Option<String> {
    let kind = image_kind(content).or((content.len() >= MIN_BYTES).then_some("bin"))?;
    let name = format!("{}.{kind}", Digest::of_bytes(content));
    let path = format!("{DIRECTORY}/{name}");
    if files.iter().all(|file| file.name != name) {
        files.push(BinaryFile { name, content: content.to_vec() });
    }
    Some(path)
}

/// The extension of an image, by its first bytes.
fn image_kind(content: &[u8]) -> Option<&'static str> {
    let begins = |at: usize, mark: &[u8]| content.get(at..).is_some_and(|it| it.starts_with(mark));
    let kinds: [(&str, usize, &[u8]); 9] = [
        ("png", 0, b"\x89PNG\r\n\x1a\n"),
        ("jpg", 0, b"\xff\xd8\xff"),
        ("gif", 0, b"GIF8"),
        ("webp", 8, b"WEBP"),
        ("tif", 0, b"II*\0"),
        ("tif", 0, b"MM\0*"),
        ("avif", 4, b"ftypavif"),
        ("heic", 4, b"ftypheic"),
        ("bmp", 0, b"BM"),
    ];
    let (kind, ..) = kinds.into_iter().find(|(_, at, mark)| begins(*at, mark))?;
    let length = || content.get(2..6).map(|it| u32::from_le_bytes([it[0], it[1], it[2], it[3]]));
    // Two letters alone are too few.
    (kind != "bmp" || length().is_some_and(|it| it as usize == content.len())).then_some(kind)
}

/// Whether a file in [`DIRECTORY`] has a name that [`extract`] gives.
pub fn is_name(name: &str) -> bool {
    let is_hex = |hex: &str| {
        hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    name.split_once('.').is_some_and(|(hex, kind)| {
        is_hex(hex) && !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_lowercase())
    })
}

/// The names of the files to which a record may refer.
pub fn references(record: &[u8]) -> impl Iterator<Item = &str> {
    let text = std::str::from_utf8(record).unwrap_or_default();
    let parts = text.split("\"images/").skip(1);
    parts.filter_map(|part| part.split_once('"').map(|(name, _)| name)).filter(|it| is_name(it))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\nsmall";

    fn text(request: &str) -> (String, Vec<BinaryFile>) {
        let (text, files) = extract(request.as_bytes().to_vec());
        (String::from_utf8(text).unwrap(), files)
    }

    #[test]
    fn images_become_paths_and_the_rest_stays_as_it_was() {
        let png = STANDARD.encode(PNG);
        let bytes = STANDARD.encode([7_u8; MIN_BYTES]);
        let request = format!(
            r#"{{"model":"m", "n":1.10,"messages":[{{"role":"user","content":[{{"type":"text","text":"data:x,y"}},{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{png}","detail":"low"}}}},{{"image_url":"data:image/png;base64,{png}"}}]}}],"instances":[[1.50],{{"b64":"{bytes}"}},{{"b64":"AAAA"}}]}}"#
        );
        let (written, files) = text(&request);
        let names: Vec<_> = files.iter().map(|file| file.name.as_str()).collect();
        let kinds: Vec<_> = names.iter().map(|name| name.split_once('.').unwrap().1).collect();
        assert_eq!(kinds, ["png", "bin"]);
        assert_eq!((&*files[0].content, files[1].content.len()), (PNG, MIN_BYTES));
        let (image, other) = (format!("images/{}", names[0]), format!("images/{}", names[1]));
        let expected = format!(
            r#"{{"model":"m","n":1.10,"messages":[{{"role":"user","content":[{{"type":"text","text":"data:x,y"}},{{"type":"image_url","image_url":{{"url":"{image}","detail":"low"}}}},{{"image_url":"{image}"}}]}}],"instances":[[1.50],{{"file":"{other}"}},{{"b64":"AAAA"}}]}}"#
        );
        assert_eq!(written, expected);
        let mut referenced: Vec<_> = references(written.as_bytes()).collect();
        referenced.dedup();
        assert_eq!(referenced, names);
    }

    #[test]
    fn request_without_binary_values_is_not_touched() {
        for request in [
            r#"{"inputs":[{"data": [1, 2.0]}]}"#,
            r#"{"url": "https://a/b.png", "b64" : "data:"}"#,
            r#"{"url":"data:text/plain,hello"}"#,
            r#"{"url":"data:image/png;base64,%%%"}"#,
            r#"{"text":"data:image/png;base64,iVBORw0KGgo="}"#,
            r#"{"b64":"#,
            "[]",
        ] {
            assert_eq!(text(request), (request.to_owned(), Vec::new()));
        }
        let deep = format!("{}{{\"b64\":\"AAAA\"}}{}", "[".repeat(100), "]".repeat(100));
        assert_eq!(text(&deep).0, deep);
    }

    #[test]
    fn type_is_that_of_the_first_bytes() {
        let mut bmp = b"BM\0\0\0\0rest".to_vec();
        assert_eq!(image_kind(&bmp), None);
        bmp[2] = 10;
        for (content, kind) in [
            (PNG, Some("png")),
            (b"\xff\xd8\xff\xe0", Some("jpg")),
            (b"RIFF1234WEBP", Some("webp")),
            (b"\0\0\0\x1cftypavif", Some("avif")),
            (&bmp, Some("bmp")),
            (b"", None),
        ] {
            assert_eq!(image_kind(content), kind);
        }
        let name = format!("{}.png", "0a".repeat(32));
        assert!(is_name(&name));
        for bad in ["../../etc/passwd", "a.png", &name[1..], &name[..65], &format!("{name}/x")] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
