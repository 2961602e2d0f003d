//! A map in one sorted allocation. A `BTreeMap` reserves room for eleven entries: with one map per
//! node that holds a few objects, most of the memory would be empty.

use std::borrow::Borrow;

/// A map for a few entries, sorted by key. Lookups cost O(log n); an insertion or removal moves the
/// entries behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SortedMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    /// Returns the value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.find(key).ok().map(|at| &self.0[at].1)
    }

    /// Returns the value of a key, to change it.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.find(key).ok().map(|at| &mut self.0[at].1)
    }

    /// Returns whether the map has a key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.find(key).is_ok()
    }

    /// Sets the value of a key. Returns the value before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                if self.0.len() == self.0.capacity() {
                    // `Vec` starts with room for four and doubles it.
                    self.0.reserve_exact(1 + self.0.len() / 4);
                }
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    /// Removes a key. Returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let (_, value) = self.find(key).ok().map(|at| self.0.remove(at))?;
        if self.0.len() < self.0.capacity() / 2 {
            self.0.shrink_to_fit();
        }
        Some(value)
    }

    /// Keeps only the entries for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &V) -> bool) {
        self.0.retain(|(key, value)| keep(key, value));
    }

    /// Returns the entries, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// Returns the keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.iter().map(|(key, _)| key)
    }

    /// Returns the values, sorted by key.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the map has no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.0.binary_search_by(|(held, _)| held.borrow().cmp(key))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sorted_map_behaves_like_a_btree_map(
            steps in proptest::collection::vec((0_u8..12, proptest::option::of(any::<u8>())), 0..200)
        ) {
            let (mut map, mut expected) = (SortedMap::default(), BTreeMap::new());
            for (key, value) in steps {
                let (held, expected_held) = if let Some(value) = value {
                    (map.insert(key, value), expected.insert(key, value))
                } else {
                    (map.remove(&key), expected.remove(&key))
                };
                prop_assert_eq!(held, expected_held);
                prop_assert!(map.iter().eq(expected.iter()));
                prop_assert_eq!(map.get(&key), expected.get(&key));
                prop_assert_eq!(map.contains_key(&key), expected.contains_key(&key));
                prop_assert!(map.0.capacity() <= 2 * map.len() + 1, "{}", map.0.capacity());
            }
        }
    }

    #[test]
    fn one_entry_has_room_for_one() {
        let mut map = SortedMap::default();
        map.insert("a", 1);
        assert_eq!(map.0.capacity(), 1);
        map.retain(|_, _| false);
        assert!(map.is_empty());
    }
}
