//! The header in which a gateway names who answered. Pure.

/// Name of the header.
pub const HEADER: &str = "x-neptune-answered-by";

/// The model that answered a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Edge,
    Cloud,
}

/// Who answered each of this number of samples: one name for all of them, or a list of names.
///
/// # Errors
/// Another name, or a list of another length.
pub fn sources(header: &str, samples: usize) -> Result<Vec<Source>, String> {
    let named = header.split(',').map(source).collect::<Option<Vec<_>>>();
    match named.as_deref() {
        Some([one]) => Ok(vec![*one; samples]),
        Some(all) if all.len() == samples => Ok(all.to_vec()),
        _ => Err(format!("{HEADER} {header:?} for {samples} samples; at most 256 are listed")),
    }
}

fn source(name: &str) -> Option<Source> {
    match name {
        "edge" => Some(Source::Edge),
        "cloud" => Some(Source::Cloud),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_name_counts_for_all_samples_and_a_list_for_each() {
        use Source::{Cloud, Edge};
        assert_eq!(sources("edge", 3).unwrap(), [Edge; 3]);
        assert_eq!(sources("edge,cloud,edge", 3).unwrap(), [Edge, Cloud, Edge]);
        for (header, samples) in [("", 1), ("mixed", 300), ("edge,cloud", 3), ("edge,fog", 2)] {
            assert!(sources(header, samples).unwrap_err().contains(header), "{header}");
        }
    }
}
