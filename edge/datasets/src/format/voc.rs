//! Reads a Pascal VOC annotation: the classes of the objects in one image. Pure.

use quick_xml::{Reader, events::Event};

use crate::{
    counts::{MAX_NAME, name_of},
    error::DatasetError,
};

/// Maximum nesting of elements. It bounds the memory for the path of the current element.
const MAX_DEPTH: usize = 64;
/// Path of the element that holds the class of an object. A `<part>` of an object has a name too,
/// which is not counted.
const CLASS_PATH: [&str; 3] = ["annotation", "object", "name"];

/// The class of each `<object>`, in file order.
///
/// # Errors
/// [`DatasetError::MalformedAnnotation`] if the file is not well-formed XML in UTF-8, or if its
/// root is not `<annotation>`.
pub(crate) fn classes(file: &[u8]) -> Result<Vec<String>, DatasetError> {
    let text = std::str::from_utf8(file).map_err(|_| malformed("not UTF-8"))?;
    let mut reader = Reader::from_str(text);
    let (mut path, mut classes, mut class) = (Vec::<String>::new(), Vec::new(), String::new());
    let mut root_seen = false;
    loop {
        match reader.read_event().map_err(|error| malformed(&error.to_string()))? {
            Event::Start(start) => {
                let name = start.local_name().as_ref().to_owned();
                root_seen |= check_root(&path, &name)?;
                if path.len() == MAX_DEPTH {
                    return Err(malformed("elements are nested too deeply"));
                }
                path.push(name);
                class.clear();
            }
            Event::Empty(empty) => root_seen |= check_root(&path, empty.local_name().as_ref())?,
            Event::End(_) => {
                if path == CLASS_PATH {
                    classes.push(truncated(&class));
                }
                path.pop();
            }
            Event::Text(text) if path == CLASS_PATH => class.push_str(&text.xml10_content()),
            Event::CData(data) if path == CLASS_PATH => class.push_str(&data.xml10_content()),
            Event::GeneralRef(reference) if path == CLASS_PATH => {
                let character = reference.resolve_char_ref().ok().flatten().map(String::from);
                let entity = || {
                    quick_xml::escape::resolve_predefined_entity(&reference.xml10_content())
                        .map(str::to_owned)
                };
                class.push_str(
                    &character.or_else(entity).ok_or_else(|| malformed("unknown entity"))?,
                );
            }
            Event::Eof if !root_seen => return Err(malformed("no root element")),
            Event::Eof if !path.is_empty() => {
                return Err(malformed("file ends before the root element is closed"));
            }
            Event::Eof => return Ok(classes),
            _ => {}
        }
    }
}

/// Whether an element is the root. The root must be `<annotation>`.
fn check_root(path: &[String], name: &str) -> Result<bool, DatasetError> {
    match path {
        [] if name == CLASS_PATH[0] => Ok(true),
        [] => Err(malformed(&format!(
            "root element is <{}>, expected <{}>",
            truncated(name),
            CLASS_PATH[0]
        ))),
        _ => Ok(false),
    }
}

fn truncated(class: &str) -> String {
    name_of(&class.as_bytes()[..class.len().min(MAX_NAME)])
}

fn malformed(reason: &str) -> DatasetError {
    DatasetError::MalformedAnnotation { reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<String>, String> {
        classes(text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn classes_of_objects_are_read_without_names_of_their_parts() {
        let text = r#"<?xml version="1.0"?>
            <annotation verified="yes"><filename>name.jpg</filename><owner><name>someone</name></owner>
              <object><name>helmet</name><part><name>head</name></part><bndbox><xmin>1</xmin></bndbox></object>
              <object><bndbox/><name> person </name></object>
              <object><name>R&amp;D &#65;</name></object><object><name><![CDATA[a<b]]></name></object>
            </annotation>"#;
        assert_eq!(
            parsed(text),
            Ok(vec!["helmet".into(), "person".into(), "R&D A".into(), "a<b".into()])
        );
        assert_eq!(parsed("<annotation/>"), Ok(vec![]));
    }

    #[test]
    fn file_that_is_not_an_annotation_is_reported_with_the_reason() {
        for (text, reason) in [
            ("", "xml: no root element"),
            ("<html></html>", "xml: root element is <html>, expected <annotation>"),
            ("<annotation><object>", "xml: file ends before the root element is closed"),
        ] {
            assert_eq!(parsed(text), Err(reason.to_owned()), "{text:?}");
        }
        assert!(parsed("<annotation></object></annotation>").is_err());
        assert!(
            parsed("<annotation><object><name>&nothing;</name></object></annotation>").is_err()
        );
        assert!(parsed(&"<annotation>".repeat(100)).is_err());
        assert!(classes(b"<annotation>\xff</annotation>").is_err());
    }
}
