//! Reading a Pascal VOC annotation: the classes of the objects in one image. Pure.

use quick_xml::{Reader, events::Event};

use crate::{
    error::Error,
    tally::{MAX_NAME, name_of},
};

/// Deeper nesting is no annotation, and would let a file make the path below grow.
const MAX_DEPTH: usize = 64;
/// Where the class of an object is named. `<part>`s of objects have names too, which are not counted.
const CLASS: [&str; 3] = ["annotation", "object", "name"];

/// The class of each `<object>`, in the order of the file.
///
/// # Errors
/// `Annotation` if it is not well-formed XML in UTF-8, or its root is not `<annotation>`.
pub(crate) fn classes(file: &[u8]) -> Result<Vec<String>, Error> {
    let text = std::str::from_utf8(file).map_err(|_| fault("not UTF-8"))?;
    let mut reader = Reader::from_str(text);
    let (mut path, mut classes, mut class) = (Vec::<String>::new(), Vec::new(), String::new());
    let mut root_seen = false;
    loop {
        match reader.read_event().map_err(|error| fault(&error.to_string()))? {
            Event::Start(start) => {
                let name = start.local_name().as_ref().to_owned();
                root_seen |= check_root(&path, &name)?;
                if path.len() == MAX_DEPTH {
                    return Err(fault("nested too deep"));
                }
                path.push(name);
                class.clear();
            }
            Event::Empty(empty) => root_seen |= check_root(&path, empty.local_name().as_ref())?,
            Event::End(_) => {
                if path == CLASS {
                    classes.push(cut(&class));
                }
                path.pop();
            }
            Event::Text(text) if path == CLASS => class.push_str(&text.xml10_content()),
            Event::CData(data) if path == CLASS => class.push_str(&data.xml10_content()),
            Event::GeneralRef(reference) if path == CLASS => {
                let character = reference.resolve_char_ref().ok().flatten().map(String::from);
                let entity = || {
                    quick_xml::escape::resolve_predefined_entity(&reference.xml10_content())
                        .map(str::to_owned)
                };
                class.push_str(&character.or_else(entity).ok_or_else(|| fault("unknown entity"))?);
            }
            Event::Eof if !root_seen => return Err(fault("empty")),
            Event::Eof if !path.is_empty() => return Err(fault("it ends before its root does")),
            Event::Eof => return Ok(classes),
            _ => {}
        }
    }
}

/// Whether `name` stands at the root, where only one name may.
fn check_root(path: &[String], name: &str) -> Result<bool, Error> {
    match path {
        [] if name == CLASS[0] => Ok(true),
        [] => Err(fault(&format!(
            "the root is <{}>, not <{}>",
            name_of(&name.as_bytes()[..name.len().min(MAX_NAME)]),
            CLASS[0]
        ))),
        _ => Ok(false),
    }
}

fn cut(class: &str) -> String {
    name_of(&class.as_bytes()[..class.len().min(MAX_NAME)])
}

fn fault(reason: &str) -> Error {
    Error::Annotation { reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Vec<String>, String> {
        classes(text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_classes_of_the_objects_are_read_and_not_the_names_of_their_parts() {
        let text = r#"<?xml version="1.0"?>
            <annotation verified="yes"><filename>name.jpg</filename><owner><name>someone</name></owner>
              <object><name>helmet</name><part><name>head</name></part><bndbox><xmin>1</xmin></bndbox></object>
              <object><bndbox/><name> person </name></object>
              <object><name>R&amp;D &#65;</name></object><object><name><![CDATA[a<b]]></name></object>
            </annotation>"#;
        assert_eq!(
            of(text),
            Ok(vec!["helmet".into(), "person".into(), "R&D A".into(), "a<b".into()])
        );
        assert_eq!(of("<annotation/>"), Ok(vec![]));
    }

    #[test]
    fn what_is_no_annotation_is_told_with_the_reason() {
        for (text, reason) in [
            ("", "xml: empty"),
            ("<html></html>", "xml: the root is <html>, not <annotation>"),
            ("<annotation><object>", "xml: it ends before its root does"),
        ] {
            assert_eq!(of(text), Err(reason.to_owned()), "{text:?}");
        }
        assert!(of("<annotation></object></annotation>").is_err());
        assert!(of("<annotation><object><name>&nothing;</name></object></annotation>").is_err());
        assert!(of(&"<annotation>".repeat(100)).is_err());
        assert!(classes(b"<annotation>\xff</annotation>").is_err());
    }
}
