//! The sections of a status page: what it shows under which names, for any layout. Pure.

/// A part of a page. A section without rows or values is not shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Section {
    /// Rows with one cell per column.
    Table {
        /// The names of the columns.
        head: &'static [&'static str],
        rows: Vec<Vec<String>>,
    },
    /// Values with their names.
    Values(Vec<Value>),
}

/// A named value, which may go on in further lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    pub name: String,
    pub lines: Vec<String>,
}

impl Section {
    /// A table. The number of cells is checked against the head by the compiler.
    pub fn table<const N: usize>(
        head: &'static [&'static str; N],
        rows: impl IntoIterator<Item = [String; N]>,
    ) -> Self {
        Self::Table { head, rows: rows.into_iter().map(Vec::from).collect() }
    }
}

impl Value {
    /// A value of one line.
    pub fn new(name: impl Into<String>, line: impl Into<String>) -> Self {
        Self { name: name.into(), lines: vec![line.into()] }
    }

    /// A value that is left out if it is absent.
    pub fn optional(name: &str, line: Option<&String>) -> Option<Self> {
        line.map(|line| Self::new(name, line))
    }
}
