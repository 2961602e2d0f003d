//! The models that are whole and right, by the digest of their download. What is here is never
//! changed; it comes by one rename and goes by one rename.
//!
//! ```text
//! sha256/<digest>/plain/model      the file as it came
//!                /unpacked/model/  what was in the archive
//!                /*/meta.json      sizes and time
//! known/<url>.json                 which digest a URL without one turned out to have
//! trash/                           on its way out
//! ```

use std::{
    collections::BTreeSet,
    fs::{self, File, Permissions},
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use serde::{Deserialize, Serialize};

use crate::{
    Digest,
    record::{read_json, remove, write_json},
    resume::Validator,
    tree,
    want::{Form, Want},
};

/// The directory of whole models.
#[derive(Debug)]
pub struct Shelf {
    dir: PathBuf,
    trashed: AtomicU64,
}

/// What is known of a model.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Meta {
    /// Of the download.
    pub bytes: u64,
    /// Of what is kept.
    pub size: u64,
    /// Milliseconds since 1970.
    pub fetched: u64,
}

#[derive(Serialize, Deserialize)]
struct Known {
    digest: Digest,
    validator: Option<Validator>,
}

impl Shelf {
    /// Blocking. Removes what an earlier process was about to remove.
    pub fn open(dir: &Path) -> io::Result<Self> {
        for part in ["sha256", "known"] {
            fs::create_dir_all(dir.join(part))?;
        }
        remove(&dir.join("trash"))?;
        fs::create_dir_all(dir.join("trash"))?;
        let shelf = Self { dir: dir.to_owned(), trashed: AtomicU64::new(0) };
        for digest in shelf.digests()? {
            // Only if it is empty: a power cut came before the rename into it.
            let _ = fs::remove_dir(shelf.of(digest));
        }
        Ok(shelf)
    }

    fn of(&self, digest: Digest) -> PathBuf {
        self.dir.join("sha256").join(digest.to_string())
    }

    /// The file or directory to hand out, if it is there.
    pub fn find(&self, digest: Digest, form: Form) -> Option<(PathBuf, Meta)> {
        let dir = self.of(digest).join(form.shelf());
        let meta: Meta = read_json(&dir.join("meta.json"))?;
        let model = dir.join("model");
        let found = fs::symlink_metadata(&model).ok()?;
        // A truncated or replaced file is not what was verified.
        let is_right = match form {
            Form::Plain => found.is_file() && found.len() == meta.size,
            _ => found.is_dir(),
        };
        is_right.then_some((model, meta))
    }

    /// The digest that a URL without one turned out to have. A local file's only while it is unchanged.
    pub fn known(&self, want: &Want, now: Option<&Validator>) -> Option<Digest> {
        let name = format!("{}.json", want.fingerprint());
        let known: Known = read_json(&self.dir.join("known").join(name))?;
        let is_same = now.is_none_or(|now| known.validator.as_ref() == Some(now));
        is_same.then_some(known.digest)
    }

    pub fn remember(
        &self,
        want: &Want,
        digest: Digest,
        validator: Option<Validator>,
    ) -> io::Result<()> {
        let name = format!("{}.json", want.fingerprint());
        write_json(&self.dir.join("known"), &name, &Known { digest, validator })
    }

    /// Makes a verified file or tree durable, and then visible. `staging` is a directory to be made.
    pub fn put(
        &self,
        model: &Path,
        digest: Digest,
        form: Form,
        meta: Meta,
        staging: &Path,
    ) -> io::Result<()> {
        let target = self.of(digest).join(form.shelf());
        remove(staging)?;
        fs::create_dir(staging)?;
        if form == Form::Plain {
            // Its old name stays until the new one is there for certain.
            fs::hard_link(model, staging.join("model"))?;
            File::open(model)?.sync_all()?;
        } else {
            tree::sync(model)?;
            fs::rename(model, staging.join("model"))?;
        }
        write_json(staging, "meta.json", &meta)?;
        fs::create_dir_all(self.of(digest))?;
        // What is there is not what it should be, or it would have been found.
        remove_all(self.hide(&target)?)?;
        fs::rename(staging, &target)?;
        for dir in [self.of(digest), self.dir.join("sha256")] {
            File::open(dir)?.sync_all()?;
        }
        if form == Form::Plain {
            // Workers run as other users, and none of them changes a model.
            fs::set_permissions(target.join("model"), Permissions::from_mode(0o444))?;
        }
        Ok(())
    }

    /// Hides all but what is to be kept and the newest so many others. Returns what has to be removed
    /// yet, and its bytes.
    pub fn collect(
        &self,
        keep: &BTreeSet<Digest>,
        newest: usize,
    ) -> io::Result<(Vec<PathBuf>, u64)> {
        let others = self.digests()?.into_iter().filter(|digest| !keep.contains(digest));
        let mut others: Vec<(u64, Digest, u64)> = others
            .map(|digest| {
                let forms = [Form::Plain, Form::Tar].map(|form| {
                    read_json::<Meta>(&self.of(digest).join(form.shelf()).join("meta.json"))
                });
                let all = || forms.iter().flatten();
                let fetched = all().map(|meta| meta.fetched).max().unwrap_or(0);
                (fetched, digest, all().map(|meta| meta.size).sum())
            })
            .collect();
        others.sort_unstable_by(|a, b| b.cmp(a));
        let (mut hidden, mut freed) = (Vec::new(), 0);
        for (_, digest, size) in others.into_iter().skip(newest) {
            hidden.extend(self.hide(&self.of(digest))?);
            freed += size;
        }
        self.forget()?;
        Ok((hidden, freed))
    }

    /// URLs whose model is gone are unknown again.
    fn forget(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.dir.join("known"))? {
            let path = entry?.path();
            let known: Option<Known> = read_json(&path);
            if known.is_none_or(|known| !self.of(known.digest).exists()) {
                remove(&path)?;
            }
        }
        Ok(())
    }

    fn digests(&self) -> io::Result<Vec<Digest>> {
        let mut digests = Vec::new();
        for entry in fs::read_dir(self.dir.join("sha256"))? {
            digests
                .extend(entry?.file_name().to_str().and_then(|name| name.parse::<Digest>().ok()));
        }
        Ok(digests)
    }

    /// Gone at once for everybody; its bytes are to follow.
    fn hide(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        let number = self.trashed.fetch_add(1, Ordering::Relaxed);
        let trash = self.dir.join("trash").join(number.to_string());
        match fs::rename(path, &trash) {
            Ok(()) => Ok(Some(trash)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Removes what was hidden.
pub fn remove_all(hidden: impl IntoIterator<Item = PathBuf>) -> io::Result<()> {
    hidden.into_iter().try_for_each(|path| remove(&path))
}
