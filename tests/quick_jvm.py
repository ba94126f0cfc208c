"""The JVM of a test run, without what costs much and does nothing there.

- Local files without a process for each: Hadoop sets the permissions of every file that it creates with `chmod`, four
  times (of the file and of its checksums, each twice), unless a library of its own is installed. Here Java sets them.
  All else of Hadoop's local file system is as it was, checksums too.
- A configuration without the defaults of YARN, MapReduce and S3A, most of a thousand settings. Spark copies it for each
  session, and Iceberg sends it to the executors with each scan and each write: 3 to 8 % of a small read.
- Spark's functions as they were compiled. For each step of each job, Spark reads the bytecode of the class that the
  function of the step is from, looks for `return` in it, and serializes the function once more than it needs to: an
  eighth of what a JVM of the tests does. It is there for functions that a person types into a Scala shell.

Tests of what users see have a JVM of their own (`AS_USED` in conftest.py), and that one is as Spark has it.
"""

from __future__ import annotations

from typing import Any

FILES = """
package strandline.tests;

import java.io.IOException;
import java.lang.reflect.Method;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class QuickFiles extends LocalFileSystem implements Runnable {
    private static final String[] UNUSED = { "yarn.", "mapreduce.", "fs.s3a.", "ipc.", "ha." };

    public QuickFiles() {
        super(new Raw());
    }

    public void trim(Configuration conf) {
        List names = new ArrayList();
        for (Iterator all = conf.iterator(); all.hasNext();) {
            String name = (String) ((Map.Entry) all.next()).getKey();
            for (int i = 0; i < UNUSED.length; i++) {
                if (name.startsWith(UNUSED[i])) {
                    names.add(name);
                }
            }
        }
        for (int i = 0; i < names.size(); i++) {
            conf.unset((String) names.get(i));
        }
    }

    public void run() {
        try {
            URI all = URI.create("file:///");
            Configuration conf = new Configuration();
            initialize(all, conf);
            Class[] parameters = new Class[] { URI.class, Configuration.class, FileSystem.class };
            Method use = FileSystem.class.getDeclaredMethod("addFileSystemForTesting", parameters);
            use.setAccessible(true);
            use.invoke(null, new Object[] { all, conf, this });
        } catch (Exception e) {
            throw new RuntimeException(e);
        }
    }

    public static class Raw extends RawLocalFileSystem {
        public void setPermission(Path path, FsPermission permission) throws IOException {
            String letters = permission.getUserAction().SYMBOL + permission.getGroupAction().SYMBOL
                + permission.getOtherAction().SYMBOL;
            Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(letters));
        }
    }
}
"""


CLEANER = """
package org.apache.spark.util;

public final class SparkClosureCleaner$ {
    public static final SparkClosureCleaner$ MODULE$ = new SparkClosureCleaner$();

    public void clean(Object function, boolean checkSerializable, boolean cleanTransitively) {
    }

    public boolean clean$default$2() {
        return true;
    }

    public boolean clean$default$3() {
        return true;
    }
}
"""
DEFINE = """
package strandline.tests;

import java.lang.invoke.MethodHandles;

public class Define {
    public Class beside(Class neighbour, byte[] code) throws Exception {
        return MethodHandles.privateLookupIn(neighbour, MethodHandles.lookup()).defineClass(code);
    }
}
"""


def use_quick_jvm(jvm: Any, configuration: Any) -> None:
    """From now on, in this JVM, whose Spark has this configuration of Hadoop and has not run a job yet."""
    quick = _compiled(jvm, FILES).loadClass("strandline.tests.QuickFiles").newInstance()
    quick.run()
    quick.trim(configuration)
    define = _compiled(jvm, DEFINE).loadClass("strandline.tests.Define").newInstance()
    neighbour = jvm.java.lang.Class.forName("org.apache.spark.util.Utils")
    name = "org.apache.spark.util.SparkClosureCleaner$"
    define.beside(neighbour, _compiler(jvm, CLEANER).getBytecodes().get(name))


def _compiled(jvm: Any, source: str) -> Any:
    return _compiler(jvm, source).getClassLoader()


def _compiler(jvm: Any, source: str) -> Any:
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(source)
    return compiler
