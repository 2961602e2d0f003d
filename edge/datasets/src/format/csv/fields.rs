//! The values of fields, where they are wanted: the names in the header, and one column of labels. Pure, bounded.

use serde::{Deserialize, Serialize};

use super::machine::Step;
use crate::{
    error::Error,
    options::Column,
    tally::{Labels, MAX_NAME, name_of},
};

/// A status is no place for more names; columns beyond are counted with their records all the same.
const MAX_COLUMNS: usize = 1024;

/// The names of the columns, as far as they are read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    names: Vec<String>,
    field: Vec<u8>,
}

impl Header {
    pub(super) fn take(&mut self, byte: u8, step: Step) {
        match step {
            Step::Content if self.field.len() < MAX_NAME => self.field.push(byte),
            Step::Content | Step::Syntax => {}
            Step::FieldEnd | Step::RecordEnd => {
                if self.names.len() < MAX_COLUMNS {
                    self.names.push(name_of(&self.field));
                }
                self.field.clear();
            }
        }
    }

    /// `open`: the file ends within the header, so that the last name has no end.
    pub(super) fn names(&self, open: bool) -> Vec<String> {
        let last = (open && self.names.len() < MAX_COLUMNS).then(|| name_of(&self.field));
        self.names.iter().cloned().chain(last).collect()
    }
}

/// Samples by the value of one column; a record without that column has the label "".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LabelColumn {
    wanted: Column,
    /// From 0; known once the header is read.
    index: usize,
    /// The field that is being read, from 0.
    current: usize,
    /// The label of the record that is being read, as far as it is read.
    label: Vec<u8>,
    counted: Labels,
}

impl LabelColumn {
    pub(super) fn new(wanted: Column) -> Self {
        let index = if let Column::Index(index) = wanted { index } else { 0 };
        Self { wanted, index, current: 0, label: Vec::new(), counted: Labels::default() }
    }

    pub(super) fn find(&mut self, names: &[String]) -> Result<(), Error> {
        let found = match &self.wanted {
            Column::Index(index) => (*index < names.len()).then_some(*index),
            Column::Name(wanted) => names.iter().position(|name| name == wanted),
        };
        self.index = found.ok_or_else(|| Error::NoSuchColumn {
            column: match &self.wanted {
                Column::Index(index) => index.to_string(),
                Column::Name(name) => format!("{name:?}"),
            },
            columns: names.iter().take(20).map(String::as_str).collect::<Vec<_>>().join(", "),
        })?;
        Ok(())
    }

    pub(super) fn take(&mut self, byte: u8, step: Step) {
        match step {
            Step::Content if self.current == self.index && self.label.len() < MAX_NAME => {
                self.label.push(byte);
            }
            Step::Content | Step::Syntax => {}
            Step::FieldEnd => self.current += 1,
            Step::RecordEnd => {
                self.counted.add(&name_of(&self.label), 1);
                self.current = 0;
                self.label.clear();
            }
        }
    }

    /// `open`: the file ends within a record, which counts.
    pub(super) fn tally(&self, open: bool) -> Labels {
        let mut labels = self.counted.clone();
        if open {
            labels.add(&name_of(&self.label), 1);
        }
        labels
    }
}
