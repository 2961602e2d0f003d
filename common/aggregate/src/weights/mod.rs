//! Files of model weights: named tensors in the safetensors or the `.npz` format.
//!
//! Headers are read within limits before anything is allocated by them. The data is read on demand,
//! in chunks, so memory does not depend on the size of the model.

mod data_type;
mod error;
mod npy;
mod npz;
mod reader;
mod safetensors;
mod writer;

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
};

pub use data_type::DataType;
pub use error::WeightsError;
use reader::TensorReader;
pub use writer::WeightsWriter;

/// Bytes of the header of a safetensors file, and of the directory of an `.npz` file.
pub const MAX_HEADER: u64 = 1024 * 1024;
/// Maximum number of tensors in a file.
pub const MAX_TENSORS: usize = 65_536;

/// The format of a file of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A safetensors file, see <https://github.com/huggingface/safetensors>.
    Safetensors,
    /// A file that `numpy.savez` or `numpy.savez_compressed` wrote.
    Npz,
}

impl Format {
    /// Number of bytes at the start of a file that [`Format::of_start`] needs.
    pub const START: usize = 9;

    /// Returns the format of a file that starts with these bytes. The rest may be malformed.
    pub fn of_start(start: &[u8]) -> Option<Self> {
        if start.starts_with(b"PK") {
            Some(Self::Npz)
        } else if start.get(8) == Some(&b'{') {
            Some(Self::Safetensors)
        } else {
            None
        }
    }

    /// Returns its name, which is the usual extension of its files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Npz => "npz",
        }
    }
}

/// The name, type and shape of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Name of the tensor; in `.npz` files without `.npy`.
    pub name: String,
    /// The type of its elements.
    pub data_type: DataType,
    /// Size of the tensor in each dimension. Empty for a single number.
    pub shape: Vec<u64>,
    /// Whether the first dimension varies fastest in the data.
    pub fortran_order: bool,
    location: Location,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Location {
    Raw { at: u64 },
    Deflated { at: u64, compressed: u64, skip: u64 },
}

impl Tensor {
    /// Returns the bytes of its data. `None` if the shape is impossible.
    pub fn bytes(&self) -> Option<u64> {
        let size = self.data_type.size() as u64;
        self.shape.iter().try_fold(size, |bytes, size| bytes.checked_mul(*size))
    }

    fn position(&self) -> u64 {
        match self.location {
            Location::Raw { at } | Location::Deflated { at, .. } => at,
        }
    }
}

/// An open file of weights.
#[derive(Debug)]
pub struct Weights {
    file: File,
    format: Format,
    /// The bytes before the data of a safetensors file. Empty for other files.
    header: Vec<u8>,
    tensors: Vec<Tensor>,
    by_name: BTreeMap<String, usize>,
}

impl Weights {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// The file cannot be read, or is malformed, or exceeds a limit.
    pub fn open(file: File) -> Result<Self, WeightsError> {
        let length = file.metadata()?.len();
        let mut start = [0; Format::START];
        let known = file.read_at(&mut start, 0)?;
        let format = Format::of_start(&start[..known]).ok_or(WeightsError::UnknownFormat)?;
        let (header, tensors) = match format {
            Format::Npz => (Vec::new(), npz::read(&file, length)?),
            Format::Safetensors => safetensors::read(&file, length)?,
        };
        let names = tensors.iter().enumerate();
        let by_name = names.map(|(at, tensor)| (tensor.name.clone(), at)).collect();
        Ok(Self { file, format, header, tensors, by_name })
    }

    /// Returns the format of the file.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the tensors, in the order of the file.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Returns the tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.by_name.get(name).map(|at| &self.tensors[*at])
    }

    /// Reads all values of one of the tensors, in the order of the file. For models that fit into
    /// memory: aggregation reads in chunks instead.
    ///
    /// # Errors
    /// The file cannot be read, or the tensor has more than `max` values.
    pub fn values(&self, tensor: &Tensor, max: usize) -> Result<Vec<f64>, WeightsError> {
        let bytes = tensor.bytes().unwrap_or(u64::MAX);
        let (count, limit) = (bytes / tensor.data_type.size() as u64, max as u64);
        if count > limit {
            return Err(WeightsError::TooLarge { what: "tensor", value: count, limit });
        }
        let mut columns = Columns::open(&[self], tensor, crate::CHUNK)?;
        let (mut values, mut chunks, mut decoded) = (Vec::new(), Vec::new(), Vec::new());
        while columns.next(&mut chunks)? {
            tensor.data_type.decode(&chunks[0], &mut decoded);
            values.append(&mut decoded);
        }
        Ok(values)
    }

    /// Opens the data of one of the tensors for reading from its start.
    fn reader(&self, tensor: &Tensor) -> io::Result<TensorReader<'_>> {
        match tensor.location {
            Location::Raw { at } => Ok(TensorReader::raw(&self.file, at)),
            Location::Deflated { at, compressed, skip } => {
                TensorReader::inflate(&self.file, at, compressed, skip)
            }
        }
    }
}

/// The data of one tensor in several files, read in chunks of equal position.
pub(crate) struct Columns<'a> {
    readers: Vec<TensorReader<'a>>,
    left: u64,
    chunk: usize,
}

impl<'a> Columns<'a> {
    /// All files have the tensor, with the same type and shape. `chunk` is in bytes, a multiple of
    /// eight.
    pub(crate) fn open(
        files: &[&'a Weights],
        tensor: &Tensor,
        chunk: usize,
    ) -> Result<Self, WeightsError> {
        let open = |weights: &&'a Weights| {
            let own = weights.tensor(&tensor.name).expect("the files were compared before");
            weights.reader(own)
        };
        let readers = files.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { readers, left: tensor.bytes().unwrap_or_default(), chunk })
    }

    /// Reads the next chunk of each file. Returns false at the end.
    pub(crate) fn next(&mut self, chunks: &mut Vec<Vec<u8>>) -> Result<bool, WeightsError> {
        let length = self.chunk.min(usize::try_from(self.left).unwrap_or(usize::MAX));
        chunks.resize_with(self.readers.len(), Vec::new);
        for (reader, chunk) in self.readers.iter_mut().zip(chunks) {
            chunk.resize(length, 0);
            reader.read_exact(chunk)?;
        }
        self.left -= length as u64;
        Ok(length > 0)
    }
}

#[cfg(test)]
mod tests;
