//! The versions of a model on a server. The highest loaded version answers. Pure.

use std::{collections::BTreeMap, sync::Arc};

use digits::model::Model;

/// A loaded version, or why it could not be loaded.
pub type Loaded = Result<Arc<Model>, String>;

/// All versions of one model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Versions {
    /// Loaded and failed versions by their number.
    pub by_number: BTreeMap<u64, Loaded>,
}

/// Why no version answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unavailable {
    /// The version does not exist.
    Unknown(String),
    /// The version exists and cannot be served.
    NotReady(String),
}

/// The version of a directory's name: a positive decimal number without leading zeros.
pub fn version(name: &str) -> Option<u64> {
    let number: u64 = name.parse().ok().filter(|number| *number > 0)?;
    (name == number.to_string()).then_some(number)
}

impl Versions {
    /// The requested version, or the highest that can answer.
    ///
    /// # Errors
    /// Why no version can answer.
    pub fn find(&self, name: Option<&str>) -> Result<(u64, Arc<Model>), Unavailable> {
        let Some(name) = name else {
            let best =
                self.by_number.iter().rev().find_map(|(number, loaded)| {
                    Some((*number, Arc::clone(loaded.as_ref().ok()?)))
                });
            return best
                .ok_or_else(|| Unavailable::NotReady("no version can be served".to_owned()));
        };
        let number = version(name);
        match number.and_then(|number| Some((number, self.by_number.get(&number)?))) {
            Some((number, Ok(model))) => Ok((number, Arc::clone(model))),
            Some((number, Err(reason))) => {
                Err(Unavailable::NotReady(format!("version {number} cannot be served: {reason}")))
            }
            None => Err(Unavailable::Unknown(format!("no version {name:?}"))),
        }
    }

    /// The versions that can answer, in ascending order.
    pub fn ready(&self) -> Vec<String> {
        let loaded = self.by_number.iter().filter(|(_, loaded)| loaded.is_ok());
        loaded.map(|(number, _)| number.to_string()).collect()
    }

    /// The differences to an earlier state, one log line each.
    pub fn changes(&self, before: &Self) -> Vec<String> {
        let new = self.by_number.iter().filter(|(number, loaded)| {
            before.by_number.get(number).map(Result::as_ref).map(Result::err)
                != Some(loaded.as_ref().err())
        });
        let new = new.map(|(number, loaded)| match loaded {
            Ok(_) => format!("version {number} is ready"),
            Err(reason) => format!("version {number} cannot be served: {reason}"),
        });
        let gone = before.by_number.keys().filter(|number| !self.by_number.contains_key(number));
        new.chain(gone.map(|number| format!("version {number} is unloaded"))).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn model() -> Arc<Model> {
        let json = include_str!("../../digits/models/small.json");
        Arc::new(Model::parse(json).unwrap())
    }

    fn versions(versions: &[(u64, Loaded)]) -> Versions {
        Versions { by_number: versions.iter().cloned().collect() }
    }

    #[test]
    fn highest_loaded_version_answers() {
        let highest =
            versions(&[(9, Ok(model())), (10, Ok(model())), (11, Err("bad".into()))]).find(None);
        assert_eq!(highest.unwrap().0, 10);
        let none = versions(&[(11, Err("bad".into()))]).find(None);
        assert!(matches!(none, Err(Unavailable::NotReady(_))));
    }

    #[test]
    fn requested_version_answers_or_none() {
        let versions = versions(&[(9, Ok(model())), (11, Err("bad".into()))]);
        assert_eq!(versions.find(Some("9")).unwrap().0, 9);
        let bad = "version 11 cannot be served: bad".to_owned();
        assert_eq!(versions.find(Some("11")).unwrap_err(), Unavailable::NotReady(bad));
        for unknown in ["10", "09", "", "x", "-1"] {
            assert!(
                matches!(versions.find(Some(unknown)), Err(Unavailable::Unknown(_))),
                "{unknown:?}"
            );
        }
        assert_eq!(versions.ready(), ["9"]);
    }

    #[test]
    fn only_positive_decimal_numbers_are_versions() {
        assert_eq!(version("10"), Some(10));
        for other in ["0", "010", "+1", "1.0", "v1", ".building", ""] {
            assert_eq!(version(other), None, "{other:?}");
        }
    }

    #[test]
    fn changes_list_new_failed_and_removed_versions_once() {
        let before = versions(&[(3, Ok(model())), (4, Err("incomplete file".into()))]);
        let after = versions(&[(4, Ok(model())), (5, Err("bad".into()))]);
        assert_eq!(
            after.changes(&before),
            ["version 4 is ready", "version 5 cannot be served: bad", "version 3 is unloaded"]
        );
        assert!(after.changes(&after).is_empty());
    }
}
