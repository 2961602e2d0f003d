//! The format options of a Dataset resource, and their validation before any data is read.

use serde::{Deserialize, Serialize};

use crate::{FormatError, format::DatasetFormat};

/// Options of all formats. A format ignores the options of the other formats.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FormatOptions {
    /// csv: whether the first record holds the column names and is not a sample. Default: true.
    pub header: bool,
    /// csv: the ASCII character that separates fields. Default: comma.
    pub delimiter: char,
    /// csv: count samples per value of this column, one of the first 1,024 columns. This is slower,
    /// because every byte is inspected.
    pub label_column: Option<CsvColumn>,
    /// json: the member of the top-level object whose array holds the samples. Without it, the
    /// top-level value must be an array.
    pub member: Option<String>,
}

/// Selects a column of a csv.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum CsvColumn {
    /// Position of the column, starting at 0.
    Index(usize),
    /// Name of the column in the header.
    Name(String),
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self { header: true, delimiter: ',', label_column: None, member: None }
    }
}

impl FormatOptions {
    /// Checks the options that `format` uses.
    ///
    /// # Errors
    /// [`FormatError::InvalidOption`] if the delimiter is not a usable ASCII character, or if the
    /// label column is a name and there is no header.
    pub fn check(&self, format: DatasetFormat) -> Result<(), FormatError> {
        if format == DatasetFormat::Csv {
            self.delimiter_byte()?;
            if !self.header && matches!(self.label_column, Some(CsvColumn::Name(_))) {
                let reason = "a column name needs a header; use a column index".to_owned();
                return Err(FormatError::InvalidOption { option: "labelColumn", reason });
            }
        }
        Ok(())
    }

    /// The delimiter as a byte.
    ///
    /// # Errors
    /// [`FormatError::InvalidOption`] if it is not a usable ASCII character.
    pub fn delimiter_byte(&self) -> Result<u8, FormatError> {
        match u8::try_from(self.delimiter) {
            Ok(byte) if byte.is_ascii() && !matches!(byte, b'"' | b'\r' | b'\n' | 0) => Ok(byte),
            _ => Err(FormatError::InvalidOption {
                option: "delimiter",
                reason: format!("{:?} cannot separate fields", self.delimiter),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn delimiter_must_be_an_unreserved_ascii_character() {
        for good in [',', ';', '\t', '|'] {
            assert!(
                FormatOptions { delimiter: good, ..FormatOptions::default() }
                    .check(DatasetFormat::Csv)
                    .is_ok()
            );
        }
        for bad in ['"', '\n', '\r', '\0', 'é', '€'] {
            assert!(
                FormatOptions { delimiter: bad, ..FormatOptions::default() }
                    .check(DatasetFormat::Csv)
                    .is_err(),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn label_column_by_name_needs_a_header() {
        let named = Some(CsvColumn::Name("class".into()));
        let without =
            FormatOptions { header: false, label_column: named, ..FormatOptions::default() };
        assert!(matches!(
            without.check(DatasetFormat::Csv),
            Err(FormatError::InvalidOption { option: "labelColumn", .. })
        ));
        assert!(
            FormatOptions { header: true, ..without.clone() }.check(DatasetFormat::Csv).is_ok()
        );
        let by_index = FormatOptions { label_column: Some(CsvColumn::Index(3)), ..without };
        assert!(by_index.check(DatasetFormat::Csv).is_ok());
    }

    #[test]
    fn options_are_deserialized_from_a_resource() {
        let read: FormatOptions =
            serde_json::from_str(r#"{"header":false,"labelColumn":3,"delimiter":";"}"#).unwrap();
        assert_eq!(read.label_column, Some(CsvColumn::Index(3)));
        assert_eq!((read.header, read.delimiter), (false, ';'));
        assert_eq!(serde_json::from_str::<FormatOptions>("{}").unwrap(), FormatOptions::default());
    }
}
