//! What a resource may say about a format beyond its name, checked before anything is read.

use serde::{Deserialize, Serialize};

use crate::{error::Error, format::Format};

/// Options of the formats; each is used by the format that it names and by no other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Options {
    /// csv: the first record names the columns and is no sample.
    pub header: bool,
    /// csv: an ASCII character between fields.
    pub delimiter: char,
    /// csv: count the samples by the value of this column, one of the first 1,024. Slower: every byte is looked at.
    pub label_column: Option<Column>,
    /// json: the member of the object at the top whose array holds the samples; without it the top must be an array.
    pub member: Option<String>,
}

/// A column of a csv.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Column {
    /// From 0.
    Index(usize),
    /// As in the header.
    Name(String),
}

impl Default for Options {
    fn default() -> Self {
        Self { header: true, delimiter: ',', label_column: None, member: None }
    }
}

impl Options {
    /// # Errors
    /// `BadOption` when an option cannot mean anything.
    pub fn check(&self, format: Format) -> Result<(), Error> {
        if format == Format::Csv {
            self.delimiter_byte()?;
            if !self.header && matches!(self.label_column, Some(Column::Name(_))) {
                let reason = "a column has a name only where there is a header".to_owned();
                return Err(Error::BadOption { option: "labelColumn", reason });
            }
        }
        Ok(())
    }

    pub(crate) fn delimiter_byte(&self) -> Result<u8, Error> {
        match u8::try_from(self.delimiter) {
            Ok(byte) if byte.is_ascii() && !matches!(byte, b'"' | b'\r' | b'\n' | 0) => Ok(byte),
            _ => Err(Error::BadOption {
                option: "delimiter",
                reason: format!("{:?} cannot stand between fields", self.delimiter),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_delimiter_is_one_ascii_character_that_means_nothing_else() {
        for good in [',', ';', '\t', '|'] {
            assert!(Options { delimiter: good, ..Options::default() }.check(Format::Csv).is_ok());
        }
        for bad in ['"', '\n', '\r', '\0', 'é', '€'] {
            assert!(
                Options { delimiter: bad, ..Options::default() }.check(Format::Csv).is_err(),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn a_label_column_by_name_needs_a_header() {
        let named = Some(Column::Name("class".into()));
        let without = Options { header: false, label_column: named, ..Options::default() };
        assert!(matches!(
            without.check(Format::Csv),
            Err(Error::BadOption { option: "labelColumn", .. })
        ));
    }

    #[test]
    fn options_are_read_from_what_a_resource_says() {
        let read: Options =
            serde_json::from_str(r#"{"header":false,"labelColumn":3,"delimiter":";"}"#).unwrap();
        assert_eq!(read.label_column, Some(Column::Index(3)));
        assert_eq!((read.header, read.delimiter), (false, ';'));
        assert_eq!(serde_json::from_str::<Options>("{}").unwrap(), Options::default());
    }
}
