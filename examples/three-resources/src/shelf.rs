//! The versions of a model that a server knows, and which one answers: the highest that could be loaded. Pure.

use std::{collections::BTreeMap, sync::Arc};

use digits::model::Model;

/// A version that was loaded, or why it could not be.
pub type Loaded = Result<Arc<Model>, String>;

/// All versions of one model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Shelf {
    pub versions: BTreeMap<u64, Loaded>,
}

/// Why no version answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Absent {
    /// There is no such version.
    Unknown(String),
    /// It is there and cannot be served.
    NotReady(String),
}

/// The version that a directory's name means: a whole number above 0 as it is usually written.
pub fn version(name: &str) -> Option<u64> {
    let number: u64 = name.parse().ok().filter(|number| *number > 0)?;
    (name == number.to_string()).then_some(number)
}

impl Shelf {
    /// The version that is asked for, or the highest that can answer.
    ///
    /// # Errors
    /// Why there is none.
    pub fn find(&self, name: Option<&str>) -> Result<(u64, Arc<Model>), Absent> {
        let Some(name) = name else {
            let best =
                self.versions.iter().rev().find_map(|(number, loaded)| {
                    Some((*number, Arc::clone(loaded.as_ref().ok()?)))
                });
            return best.ok_or_else(|| Absent::NotReady("no version can be served".to_owned()));
        };
        let number = version(name);
        match number.and_then(|number| Some((number, self.versions.get(&number)?))) {
            Some((number, Ok(model))) => Ok((number, Arc::clone(model))),
            Some((number, Err(reason))) => {
                Err(Absent::NotReady(format!("version {number} cannot be served: {reason}")))
            }
            None => Err(Absent::Unknown(format!("no version {name:?}"))),
        }
    }

    /// The versions that can answer, the lowest first.
    pub fn ready(&self) -> Vec<String> {
        let loaded = self.versions.iter().filter(|(_, loaded)| loaded.is_ok());
        loaded.map(|(number, _)| number.to_string()).collect()
    }

    /// What is different from before, a line each, for a log.
    pub fn changes(&self, before: &Self) -> Vec<String> {
        let new = self.versions.iter().filter(|(number, loaded)| {
            before.versions.get(number).map(Result::as_ref).map(Result::err)
                != Some(loaded.as_ref().err())
        });
        let new = new.map(|(number, loaded)| match loaded {
            Ok(_) => format!("version {number} is ready"),
            Err(reason) => format!("version {number} cannot be served: {reason}"),
        });
        let gone = before.versions.keys().filter(|number| !self.versions.contains_key(number));
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

    fn shelf(versions: &[(u64, Loaded)]) -> Shelf {
        Shelf { versions: versions.iter().cloned().collect() }
    }

    #[test]
    fn the_highest_version_that_could_be_loaded_answers() {
        let found =
            shelf(&[(9, Ok(model())), (10, Ok(model())), (11, Err("bad".into()))]).find(None);
        assert_eq!(found.unwrap().0, 10);
        let none = shelf(&[(11, Err("bad".into()))]).find(None);
        assert!(matches!(none, Err(Absent::NotReady(_))));
    }

    #[test]
    fn a_version_that_is_asked_for_by_name_is_that_one_or_none() {
        let shelf = shelf(&[(9, Ok(model())), (11, Err("bad".into()))]);
        assert_eq!(shelf.find(Some("9")).unwrap().0, 9);
        let bad = "version 11 cannot be served: bad".to_owned();
        assert_eq!(shelf.find(Some("11")).unwrap_err(), Absent::NotReady(bad));
        for unknown in ["10", "09", "", "x", "-1"] {
            assert!(matches!(shelf.find(Some(unknown)), Err(Absent::Unknown(_))), "{unknown:?}");
        }
        assert_eq!(shelf.ready(), ["9"]);
    }

    #[test]
    fn only_usual_numbers_are_versions() {
        assert_eq!(version("10"), Some(10));
        for other in ["0", "010", "+1", "1.0", "v1", ".building", ""] {
            assert_eq!(version(other), None, "{other:?}");
        }
    }

    #[test]
    fn changes_tell_what_came_went_and_failed_once() {
        let before = shelf(&[(3, Ok(model())), (4, Err("half a file".into()))]);
        let after = shelf(&[(4, Ok(model())), (5, Err("bad".into()))]);
        assert_eq!(
            after.changes(&before),
            ["version 4 is ready", "version 5 cannot be served: bad", "version 3 is unloaded"]
        );
        assert!(after.changes(&after).is_empty());
    }
}
