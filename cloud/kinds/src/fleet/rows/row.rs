//! What one agent instance of a node counted for an object.

use neptune_wire::Counters;

/// The row of one agent instance of a node.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) instance: String,
    /// What the status has, and its position there.
    pub(super) stored: Option<(usize, Numbers)>,
    /// What the slices have, by the index of the slice. Rarely more than one.
    pub(super) sliced: Vec<(u32, Numbers)>,
    /// What was reported and is not stored yet.
    pub(super) reported: Option<Reported>,
}

/// Counters, and the newest message that had them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Numbers {
    /// The epoch, and the number of the message in it.
    pub(super) order: (u64, u64),
    pub(super) counters: Counters,
}

/// The numbers of reports since the last write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reported {
    pub(super) numbers: Numbers,
    /// When the first of the reports came, by the clock of the rows.
    pub(super) since: u64,
    /// When the numbers changed last.
    pub(super) changed: u64,
}

impl Numbers {
    pub(super) fn max(self, other: Self) -> Self {
        Self { order: self.order.max(other.order), counters: self.counters.max(other.counters) }
    }

    /// Whether no counter of the other numbers is higher.
    pub(super) fn cover(self, other: Self) -> bool {
        self.counters.max(other.counters) == self.counters
    }
}

impl Row {
    /// The highest numbers, with reports that are not stored yet.
    pub(super) fn numbers(&self) -> Numbers {
        let reported = self.reported.as_ref().map(|reported| reported.numbers);
        let stored = self.stored.as_ref().map(|(_, numbers)| *numbers);
        let sliced = self.sliced.iter().map(|(_, numbers)| *numbers);
        sliced.chain(stored).chain(reported).fold(Numbers::default(), Numbers::max)
    }

    /// The place of the row in the next status. Rows that the status does not have yet follow the
    /// others, in the order in which they were reported.
    pub(super) fn position(&self) -> (usize, u64) {
        match (&self.stored, &self.reported) {
            (Some((position, _)), _) => (*position, 0),
            (None, reported) => (usize::MAX, reported.map_or(0, |reported| reported.since)),
        }
    }

    /// What a slice has of the row.
    pub(super) fn in_slice(&self, index: u32) -> Option<Numbers> {
        self.sliced.iter().find(|(slice, _)| *slice == index).map(|(_, numbers)| *numbers)
    }

    /// Whether the status or a slice has the row.
    pub(super) fn is_stored(&self) -> bool {
        self.stored.is_some() || !self.sliced.is_empty()
    }

    /// Whether nothing has the row.
    pub(super) fn is_empty(&self) -> bool {
        !self.is_stored() && self.reported.is_none()
    }
}

/// The row of an instance of a node, which is created.
pub(super) fn row_of<'a>(node: &'a mut Vec<Row>, instance: &str) -> &'a mut Row {
    let at = node.iter().position(|row| row.instance == instance).unwrap_or_else(|| {
        let instance = instance.to_owned();
        node.push(Row { instance, stored: None, sliced: Vec::new(), reported: None });
        node.len() - 1
    });
    &mut node[at]
}

/// The sum of the numbers of these rows.
pub(super) fn sum(rows: &[Row]) -> Counters {
    rows.iter().map(|row| row.numbers().counters).fold(Counters::default(), Counters::plus)
}
