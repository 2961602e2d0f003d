//! The values of the fields that are needed: the column names in the header, and one label column.
//! Pure, with bounded memory.

use neptune_sources::CsvColumn;
use serde::{Deserialize, Serialize};

use super::grammar::ByteKind;
use crate::{
    counts::{LabelCounts, MAX_NAME, name_of},
    error::DatasetError,
};

/// Maximum number of column names to keep. Records with more columns are counted all the same.
const MAX_COLUMNS: usize = 1024;

/// The column names, as far as the header was read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CsvHeader {
    names: Vec<String>,
    field: Vec<u8>,
}

impl CsvHeader {
    pub(super) fn add_byte(&mut self, byte: u8, kind: ByteKind) {
        match kind {
            ByteKind::Content if self.field.len() < MAX_NAME => self.field.push(byte),
            ByteKind::Content | ByteKind::Syntax => {}
            ByteKind::FieldEnd | ByteKind::RecordEnd => {
                if self.names.len() < MAX_COLUMNS {
                    self.names.push(name_of(&self.field));
                }
                self.field.clear();
            }
        }
    }

    /// `open`: the file ends within the header, so the last name has no end.
    pub(super) fn names(&self, open: bool) -> Vec<String> {
        let last = (open && self.names.len() < MAX_COLUMNS).then(|| name_of(&self.field));
        self.names.iter().cloned().chain(last).collect()
    }
}

/// Counts samples by the value of one column. A record without that column has the label "".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LabelColumn {
    wanted: CsvColumn,
    /// Position of the column, starting at 0. Valid after the header was read.
    index: usize,
    /// Position of the current field, starting at 0.
    current: usize,
    /// The label of the current record, as far as it was read.
    label: Vec<u8>,
    counted: LabelCounts,
}

impl LabelColumn {
    pub(super) fn new(wanted: CsvColumn) -> Self {
        let index = if let CsvColumn::Index(index) = wanted { index } else { 0 };
        Self { wanted, index, current: 0, label: Vec::new(), counted: LabelCounts::default() }
    }

    pub(super) fn find(&mut self, names: &[String]) -> Result<(), DatasetError> {
        let position = match &self.wanted {
            CsvColumn::Index(index) => (*index < names.len()).then_some(*index),
            CsvColumn::Name(wanted) => names.iter().position(|name| name == wanted),
        };
        self.index = position.ok_or_else(|| DatasetError::NoSuchColumn {
            column: match &self.wanted {
                CsvColumn::Index(index) => index.to_string(),
                CsvColumn::Name(name) => format!("{name:?}"),
            },
            columns: names.iter().take(20).map(String::as_str).collect::<Vec<_>>().join(", "),
        })?;
        Ok(())
    }

    pub(super) fn add_byte(&mut self, byte: u8, kind: ByteKind) {
        match kind {
            ByteKind::Content if self.current == self.index && self.label.len() < MAX_NAME => {
                self.label.push(byte);
            }
            ByteKind::Content | ByteKind::Syntax => {}
            ByteKind::FieldEnd => self.current += 1,
            ByteKind::RecordEnd => {
                self.counted.add(&name_of(&self.label), 1);
                self.current = 0;
                self.label.clear();
            }
        }
    }

    /// `open`: the file ends within a record, which is counted.
    pub(super) fn counts(&self, open: bool) -> LabelCounts {
        let mut labels = self.counted.clone();
        if open {
            labels.add(&name_of(&self.label), 1);
        }
        labels
    }
}
